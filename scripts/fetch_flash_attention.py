#!/usr/bin/env python3
"""Fetches the sources of FlashAttention-3 and of CUTLASS, which it is written in, from the Python package index.

    fetch_flash_attention.py OUT_DIR      OUT_DIR/hopper and OUT_DIR/csrc/cutlass/include, as in a checkout of FlashAttention

The index has them in the source package of xformers, which contains both as they are; nothing of xformers itself is used. The
index is that of PIP_INDEX_URL, or of pip's configuration. What comes must have the checksum below.
"""

import hashlib
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

PROJECT = "xformers"
PACKAGE = "xformers-0.0.34.tar.gz"
SHA256 = "716bd9ffe61f46c2cc0536abf8b8c43ec594bea47a49394ea5cfa417e9de6a6f"
PARTS = ("hopper", "csrc/cutlass/include")
CA_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def index_url():
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or configured or "https://pypi.org/simple"


def tls():
    """Trusts what pip is told to, else what the system does, also where this Python was made for another one."""
    files = [os.environ.get("PIP_CERT"), os.environ.get("SSL_CERT_FILE"), *CA_FILES]
    return ssl.create_default_context(cafile=next((f for f in files if f and Path(f).is_file()), None))


def read(url):
    with urllib.request.urlopen(url, timeout=120, context=tls()) as answer:
        return answer.read()


def fetch():
    page_url = f"{index_url().rstrip('/')}/{PROJECT}/"
    link = re.search(rf'href="([^"]*/{re.escape(PACKAGE)})[#"]', read(page_url).decode())
    if not link:
        raise OSError(f"{page_url} has no {PACKAGE}")
    url = urllib.parse.urljoin(page_url, link.group(1))
    data = read(url)
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise OSError(f"{url} has the SHA-256 {found}, expected {SHA256}")
    return data


def unpack(data, out):
    root = f"{PACKAGE.removesuffix('.tar.gz')}/third_party/flash-attention/"
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            name = member.name.removeprefix(root)
            if member.isfile() and member.name.startswith(root) and name.startswith(tuple(f"{p}/" for p in PARTS)):
                path = out / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    try:
        data = fetch()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            unpack(data, Path(scratch) / out.name)
            shutil.rmtree(out, ignore_errors=True)
            (Path(scratch) / out.name).rename(out)
    except (OSError, urllib.error.URLError, tarfile.TarError) as error:
        sys.exit(f"fetch_flash_attention.py: {error}")


if __name__ == "__main__":
    main()
