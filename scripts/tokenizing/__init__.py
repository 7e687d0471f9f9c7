"""The parts of scripts/tokenize_hf.py: inputs -> documents -> parts -> token files."""
