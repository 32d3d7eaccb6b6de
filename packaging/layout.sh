# Creates the tree of each package below a directory: DIRECTORY/{ccagent-core,ccagent,...}. Sourced
# by build.

layout() {
    mkdir "$1"
    cp -a "$here/tree/." "$1"
    core=$1/ccagent-core
    home=$core/usr/lib/ccagent
    share=$core/usr/share/ccagent
    "$python" "$here/vendor.py" unpack "$wheels" "$home" --arch "$arch"
    cp -a "$source" "$work/build"
    "$python" "$here/vendor.py" build "$wheels" "$home" "$work/build" --arch "$arch"
    rm -rf "$work/build"
    if [ "$store" = yes ]; then
        "$python" "$here/vendor.py" unpack "$wheels" "$1/ccagent-store/usr/lib/ccagent-store" \
            --arch "$arch" --list wheels-store.txt
        mkdir -p "$1/ccagent-store/var/lib/ccagent-store"
    else
        rm -r "$1/ccagent-store"
    fi

    mkdir -p "$core/etc/ccagent/conf.d" "$core/var/lib/ccagent/outbox"
    cp -R "$here/examples" "$here/ansible" "$here/venv" "$share"
    rm "$share/examples/README.md" "$share/ansible/README.md"
    generated "$home" "$core"
    "$python" -I -S -B "$here/documents.py" "$source" "$core" usr/share/doc/ccagent-core

    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f ! -perm -100 -exec chmod 644 {} +
    chmod 640 "$core/etc/ccagent/ccagent.toml"
    chmod 750 "$core/etc/ccagent" "$core/etc/ccagent/conf.d" "$core/var/lib/ccagent" \
        "$core/var/lib/ccagent/outbox"
    if [ "$store" = yes ]; then
        chmod 640 "$1/ccagent-store/etc/ccagent/store.toml"
        chmod 750 "$1/ccagent-store/etc/ccagent" "$1/ccagent-store/var/lib/ccagent-store"
    fi
    dated "$1"
}

# Compiles bytecode. It is unchecked, because a package system may change the time stamps of
# sources.
compile() {
    for each in $pythons; do
        "$each" -I -S -m compileall -q --invalidation-mode unchecked-hash \
            -s "$1/ccagent-core" -p / "$1/ccagent-core/usr/lib/ccagent"
        [ "$store" = yes ] || continue
        "$each" -I -S -m compileall -q --invalidation-mode unchecked-hash \
            -s "$1/ccagent-store" -p / "$1/ccagent-store/usr/lib/ccagent-store"
    done
    dated "$1"
}

dated() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# Lets the program write man pages, completions and the configuration with all keys.
generated() {
    program=$1
    if [ "$arch" != "$(uname -m)" ]; then
        program=$work/native
        "$python" "$here/vendor.py" unpack "$wheels" "$program" --arch "$(uname -m)"
        cp -a "$1/ccagent" "$1/__main__.py" "$program"
    fi
    "$python" -I -S -B "$program" generate "$work/generated" >/dev/null
    cp -R "$work/generated/share" "$2/usr"
    find "$2/usr/share/man" -type f -exec gzip -9n {} +
    cp "$work/generated/ccagent.toml" "$2/usr/share/ccagent/examples"
    rm -rf "$work/generated" "$work/native"
}
