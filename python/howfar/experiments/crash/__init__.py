"""What a crash loses: clients' logs against what the surviving server holds."""
