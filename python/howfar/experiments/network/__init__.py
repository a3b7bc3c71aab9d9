"""Sessions over a network: curves of throughput, compression, encryption, response times at a rate, programs on the path."""
