#!/usr/bin/env bash
# Makes the virtual environment that every `make` target uses, and makes it again only when it has
# to: its stamp holds a hash of pyproject.toml, constraints.txt and the folder of this checkout
# (a moved checkout breaks the paths inside an environment). A hash and not a file time, so that a
# fresh clone or a `touch` installs nothing. Until set-up has ended the stamp says "unfinished": an
# interrupted one is noticed and starts again from an empty folder. A folder without a stamp was
# made by somebody else and is never touched. Of two set-ups at once the second waits for the first:
# the folder of the checkout is the lock, where there is flock(1), so no file is left behind.
#
# Reads: VENV (.venv), PYTHON (the first usable one), KVLAB_MIN_FREE_MB (4000). pip's own settings
# (PIP_INDEX_URL, PIP_FIND_LINKS, ...) are honored.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VENV:-.venv}
min_free_mb=${KVLAB_MIN_FREE_MB:-4000}
stamp=$venv/.kvlab-stamp
log=build/setup.log

trap 'printf "\nkvlab: set-up was interrupted; the same command starts it again\n" >&2; exit 130' INT

fail() { printf 'kvlab: %s\n' "$1" >&2; exit 1; }

sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi; }

# Says whether $1 can make the environment; prints nothing.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' </dev/null \
        >/dev/null 2>&1
}

find_python() {
    local candidate
    # 3.11 first: the pins were tested on it.
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python 3.11 or newer with venv was found (looked for: ${PYTHON:-python3.11 to python3.14, python3}): install one (Debian and Ubuntu: python3 and python3-venv), or name one with PYTHON=/path/to/python."
}

check_disk() {
    local parent free_mb
    parent=$(dirname "$venv")
    mkdir -p "$parent"
    free_mb=$(df -Pk "$parent" | awk 'NR == 2 { print int($4 / 1024) }')
    if ((free_mb < min_free_mb)); then
        fail "the disk is too full: set-up needs $min_free_mb MB and $free_mb MB are free beside $venv; free some space, or put the environment on another disk with VENV=/path/to/folder."
    fi
}

# install WHAT PIP_ARGUMENTS...: quiet, with the whole output in the log.
install() {
    local what=$1
    shift
    printf 'kvlab: installing %s ...\n' "$what"
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "$@" \
        >>"$log" 2>&1 </dev/null; then
        tail -n 8 "$log" >&2
        # pip takes back an install that fails, so an older environment is still what it was.
        printf '%s\n' "$before" >"$stamp"
        # pip says "no matching distribution" without a network too, hence the order.
        if grep -q 'No space left on device' "$log"; then
            fail "the disk is full: pip could not write $what; free some space, or name other folders with VENV=/path/to/folder and TMPDIR=/path/to/folder ($log has it all)."
        elif grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|Connection (broken|refused|reset)|name resolution|ProxyError|SSLError|Network is unreachable' "$log"; then
            fail "no network: pip could not reach its package index for $what; connect, or point PIP_INDEX_URL or PIP_FIND_LINKS at one that you have, and run the same command again ($log has it all)."
        fi
        fail "pip could not install $what: read the lines above ($log has it all), mend what they name, and run the same command again."
    fi
}

key="$({ cat pyproject.toml constraints.txt; pwd -P; } | sha256 | cut -c 1-64)"
ready() {
    before=$(cat "$stamp" 2>/dev/null || true)
    [ "$before" = "$key" ] && [ -x "$venv/bin/python" ]
}
if ready; then exit 0; fi
if command -v flock >/dev/null; then
    exec 9<.
    if ! flock -n 9; then
        printf 'kvlab: another set-up is under way in this folder; waiting for it\n' >&2
        flock 9
    fi
    if ready; then exit 0; fi
fi

if [ -z "$before" ] && [ -n "$(ls -A "$venv" 2>/dev/null)" ]; then
    fail "$venv was not made by this set-up and is left alone: remove it, name another folder with VENV=/path/to/folder, or use it as it is with KVLAB_PYTHON=$venv/bin/python."
fi
check_disk
mkdir -p build
: >"$log"
started=$SECONDS
if [ -n "$before" ] && [ "$before" != unfinished ] && [ -x "$venv/bin/python" ]; then
    printf 'kvlab: the pins changed, bringing %s up to date\n' "$venv"
    echo unfinished >"$stamp"
else
    before=unfinished
    python=$(find_python)
    printf 'kvlab: setting up %s with %s, some minutes, once\n' "$venv" "$("$python" -V 2>&1)"
    mkdir -p "$venv"
    echo unfinished >"$stamp"
    find "$venv/" -mindepth 1 -maxdepth 1 ! -name "${stamp##*/}" -exec rm -rf {} +
    if ! "$python" -m venv "$venv" >>"$log" 2>&1 </dev/null; then
        tail -n 8 "$log" >&2
        fail "$python could not make $venv: read the lines above, or name another Python with PYTHON=/path/to/python."
    fi
fi
# torch first and alone, so that a wheel of it at hand is taken and its progress shows.
install torch -c constraints.txt torch
install 'everything else' -c constraints.txt -e '.[dev]'
printf '%s\n' "$key" >"$stamp.new"
mv "$stamp.new" "$stamp"
printf 'kvlab: %s is ready after %d s\n' "$venv" $((SECONDS - started))
