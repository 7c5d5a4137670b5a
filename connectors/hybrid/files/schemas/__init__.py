"""The columns of files without a declared schema: inferred, stored, and extended when files have more."""
