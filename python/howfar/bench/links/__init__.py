"""The benchmark of the emulated link, and of the programs that it is compared with."""
