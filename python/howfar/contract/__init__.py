"""The messages between Python and the engine, generated from its schema, and the receipt of a trial, which holds some of them."""
