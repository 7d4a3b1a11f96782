# Sourced on the GPU machine, in the root of the checkout: the packages of .gpu/whl, then the import names of the pack.
site=/tmp/segue-site pack=/tmp/segue-pack
if [ ! -e $site/.done ]; then
    python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target $site .gpu/whl/*.whl \
        && touch $site/.done
fi
rm -rf $pack && mkdir -p $pack/segue $pack/segue-0.1.0.dist-info
ln -s "$PWD"/segue/* $pack/segue/ && ln -sf "$PWD"/flows "$PWD"/tasks "$PWD"/deployments $pack/segue/
for folder in benchmarks examples website tests; do ln -s "$PWD/$folder" $pack/$folder; done
printf 'Metadata-Version: 2.1\nName: segue\nVersion: 0.1.0\n' > $pack/segue-0.1.0.dist-info/METADATA
export PYTHONPATH=$pack:$site:$PWD/benchmarks/accelerator/kit PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export OUT=${OUT:-$PWD/build/gpu} && mkdir -p "$OUT"

# part SECONDS FILE COMMAND...: runs it, writes what it prints to the file and here, and says how it ended.
part() {
    local seconds=$1 file=$OUT/$2 began=$SECONDS code
    shift 2
    timeout -k 5 "$seconds" "$@" >> "$file" 2>&1
    code=$?
    tail -n "${LINES_SHOWN:-12}" "$file" | cut -c -220
    echo "== exit code $code after $((SECONDS - began)) s of $seconds: ${*: -3}" | tee -a "$OUT/summary.txt"
}
