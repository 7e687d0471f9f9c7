#!/usr/bin/env python3
"""Fetches the sources of FlashAttention-3, and of CUTLASS, which they include, from the Python package index.

    fetch_flash_attention.py OUT_DIR      writes OUT_DIR/hopper and OUT_DIR/csrc/cutlass/include, as in a checkout of FlashAttention
    fetch_flash_attention.py --version    prints the checksum of the package, which OUT_DIR/SHA256 contains after a fetch

The sources come from the source package of xformers, which contains both unchanged, with their licenses. Nothing of xformers itself is
used. The index is that of PIP_INDEX_URL, or of pip's index-url under [global]. The script also respects PIP_CERT, SSL_CERT_FILE and the
proxies of the environment, but no other settings of pip. The download must have the checksum below.
"""

import base64
import hashlib
import html
import http.client
import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

PROJECT = "xformers"
PACKAGE = "xformers-0.0.34.tar.gz"
SHA256 = "716bd9ffe61f46c2cc0536abf8b8c43ec594bea47a49394ea5cfa417e9de6a6f"
ROOT = "xformers-0.0.34/"
# Parts of the package that are used, and where they go.
PARTS = {
    "third_party/flash-attention/hopper/": "hopper/",
    "third_party/flash-attention/csrc/cutlass/include/": "csrc/cutlass/include/",
    "third_party/flash-attention/csrc/cutlass/LICENSE.txt": "csrc/cutlass/LICENSE.txt",
    "LICENSE": "LICENSE",
}
CA_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")


def index_url():
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return os.environ.get("PIP_INDEX_URL") or configured or "https://pypi.org/simple"


def tls():
    """Returns a TLS context that trusts the certificates that pip is told to use, or else those of this system. A Python that was
    built on another system would look for them elsewhere."""
    files = [os.environ.get("PIP_CERT"), os.environ.get("SSL_CERT_FILE"), *CA_FILES]
    return ssl.create_default_context(cafile=next((f for f in files if f and Path(f).is_file()), None))


def without_user(url):
    """Returns the URL without its user name and password, and an Authorization header that contains them."""
    parts = urllib.parse.urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    header = {"Authorization": "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()} if at else {}
    return parts._replace(netloc=host).geturl(), header


def read(url, header):
    """Returns the content of a URL and the URL after redirects."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=header), timeout=120, context=tls()) as answer:
        return answer.read(), answer.url


def fetch():
    page_url, header = without_user(f"{index_url().rstrip('/')}/{PROJECT}/")
    page, page_url = read(page_url, header)
    link = re.search(rf"""href=["']((?:[^"']*/)?{re.escape(PACKAGE)}(?:\?[^"'#]*)?)["'#]""", page.decode())
    if not link:
        raise OSError(f"{page_url} has no {PACKAGE}")
    url = urllib.parse.urljoin(page_url, html.unescape(link.group(1)))
    same_host = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(page_url).netloc
    data, url = read(url, header if same_host else {})
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise OSError(f"{url} has the SHA-256 {found}, expected {SHA256}")
    return data


def place_of(name):
    """Returns the destination of a file of the package, or None if it is not used."""
    name = name.removeprefix(ROOT)
    for part, place in PARTS.items():
        if (name == part or (part.endswith("/") and name.startswith(part))) and ".." not in name.split("/"):
            return place + name.removeprefix(part)
    return None


def unpack(data, out):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            place = place_of(member.name)
            if member.isfile() and place:
                path = out / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as source, path.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
    (out / "SHA256").write_text(f"{SHA256}\n", encoding="utf-8")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--version":
        print(SHA256)
        return
    out = Path(sys.argv[1])
    try:
        data = fetch()
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            unpack(data, Path(scratch) / out.name)
            shutil.rmtree(out, ignore_errors=True)
            (Path(scratch) / out.name).rename(out)
    except (OSError, ValueError, http.client.HTTPException, tarfile.TarError) as error:
        sys.exit(f"fetch_flash_attention.py: {error}")


if __name__ == "__main__":
    main()
