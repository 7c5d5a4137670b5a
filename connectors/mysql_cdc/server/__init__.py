"""What is asked of a server, and how it is reached."""
