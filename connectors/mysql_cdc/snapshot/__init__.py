"""Reading tables as they were at a low watermark."""
