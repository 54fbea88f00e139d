#!/usr/bin/env bash
# What users get: wheel and source distribution built, checked, and installed where nothing else is.
#
#   tests/release.sh [FOLDER]    they are left in FOLDER, by default in none
#
# It needs `pip install '.[release]'`. PYTHONS names versions or interpreters to install for; by default all
# from 3.10 that are on this machine. What is tried in each: README's first program, `singanet train`,
# every public name against tests/public_api.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
export UV_FIND_LINKS="${PIP_FIND_LINKS:-$(pip config get global.find-links 2>/dev/null || true)}"
export PYTHONPYCACHEPREFIX="$made/bytecode" XDG_CACHE_HOME="$made/user" UV_CACHE_DIR="$made/cache"
unset PYTHONPATH SINGANET_OPS

# A copy without what is lying about: files that git ignores would be packed with it.
mkdir "$made/source"
if git rev-parse --is-inside-work-tree > "$made/log" 2>&1; then
    git ls-files -co --exclude-standard -z | tar -c --null --ignore-failed-read -T - | tar -x -C "$made/source"
else
    cp -R . "$made/source"
fi
python -m build --outdir "$made/dist" "$made/source" > "$made/log" 2>&1 || { cat "$made/log"; exit 1; }
python -m twine check --strict "$made"/dist/*
check-wheel-contents --config "$root/pyproject.toml" "$made"/dist/*.whl
ls -l "$made/dist" | awk 'NR > 1 {printf "%-36s %.2f MB\n", $NF, $5 / 1e6}'

read -ra pythons <<< "${PYTHONS:-$(for v in 3.10 3.11 3.12 3.13 3.14 3.15; do
    command -v "python$v" > "$made/log" && "python$v" --version > "$made/log" 2>&1 && echo "python$v" ||
        ls -d ~/.pyenv/versions/"$v".*/bin/python3 2> "$made/log" | tail -n 1
done | tr '\n' ' ')}"

# The first block of Python that a reader meets.
awk '/^```python$/ {inside = 1; next} /^```$/ && inside {exit} inside' README.md > "$made/first.py"
failed=0

# Installs FILE for PYTHON and uses it: try PYTHON FILE EXTRAS.
try() {
    local env start installed
    env=$(mktemp -d "$made/env.XXXX")
    uv venv --quiet --clear --python "$1" "$env" || { echo "$1: no such Python here"; return 1; }
    start=$SECONDS
    uv pip install --quiet --python "$env/bin/python" "$2$3"
    installed=$((SECONDS - start))
    start=$SECONDS
    (
        cd "$env" # not the checkout, whose package would be met first
        uv pip check --quiet --python bin/python
        bin/python -W error -c 'import singanet; assert "site-packages" in singanet.__file__'
        bin/python "$made/first.py"
        bin/singanet train lenet --data digits --epochs 3 --out run
        bin/singanet evaluate run
        mkdir -p given/tests given/docs && cp "$root"/tests/public_api.* given/tests && cp -R "$root/docs/api" given/docs
        (cd given && "$env/bin/python" -m tests.public_api)
        diff "$root/tests/public_api.txt" given/tests/public_api.txt
    ) > "$env/log" 2>&1 || { cat "$env/log"; return 1; }
    printf '%-16s %-44s installed in %2d s, %3d MB, used in %2d s\n' "$("$env/bin/python" --version)" \
        "$(basename "$2")$3" "$installed" "$(du -sm "$env" | cut -f1)" $((SECONDS - start))
}

for python in "${pythons[@]}"; do
    try "$python" "$(ls "$made"/dist/*.whl)" "[fast]" || failed=1
done
try "${pythons[-1]}" "$(ls "$made"/dist/*.tar.gz)" "" || failed=1

if [ -n "${1:-}" ] && [ "$failed" = 0 ]; then
    mkdir -p "$1" && cp "$made"/dist/* "$1"
fi
exit "$failed"
