"""What howfar needs from a machine: programs, the packages that contain them, and permissions."""
