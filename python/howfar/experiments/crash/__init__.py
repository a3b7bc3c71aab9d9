"""What a crash loses: clients' logs against what a surviving server holds."""
