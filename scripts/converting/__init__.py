"""The parts of scripts/import_checkpoint.py: the files of both formats, and the names of a Llama's parameters in them."""
