# Creates the tree of each package below a directory: DIRECTORY/{ccagent-core,ccagent-node,...}. Sourced
# by build.

layout() {
    mkdir "$1"
    cp -a "$here/tree/." "$1"
    core=$1/ccagent-core
    home=$core/usr/lib/ccagent
    share=$core/usr/share/ccagent
    "$python" "$here/vendor.py" unpack "$wheels" "$home" --arch "$arch"
    cp -a "$source" "$work/build"
    [ "$store" = yes ] || export CCAGENT_PURE=1 # only the store has compiled code
    "$python" "$here/vendor.py" build "$wheels" "$home" "$work/build" --arch "$arch"
    rm -rf "$work/build"

    mkdir -p "$core/etc/ccagent/conf.d" "$core/var/lib/ccagent/outbox"
    cp -R "$here/examples" "$here/ansible" "$here/venv" "$share"
    rm "$share/examples/README.md" "$share/ansible/README.md"
    for unit in ccagent ccagent-store; do
        {
            echo "# For a virtual environment in /opt/ccagent, without packages; see packaging/README.md."
            sed 's,^ExecStart=/usr/bin/,ExecStart=/opt/ccagent/bin/,' "$here"/tree/*/usr/lib/systemd/system/$unit.service
        } >"$share/venv/$unit.service"
    done
    generated "$home" "$core"
    divide "$1"
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

# Moves the rooms of the store and of its pages to their packages, with the modules that they need.
divide() {
    stores=$1/ccagent-store/usr/lib/ccagent/ccagent
    web=$1/ccagent-web/usr/lib/ccagent/ccagent/views
    mkdir -p "$stores" "$web" "$1/ccagent-store/var/lib/ccagent-store"
    mv "$home/ccagent/stores" "$stores"
    mv "$home/ccagent/views/web" "$home/ccagent/views/trial" "$web"
    # `ccagent job` shares these with the store.
    mkdir -p "$home/ccagent/stores/metrics/usage"
    for module in __init__ metrics/__init__ metrics/job_details metrics/job_table \
        metrics/line_keys metrics/page_settings \
        metrics/usage/__init__ metrics/usage/table; do
        mv "$stores/stores/$module.py" "$home/ccagent/stores/$module.py"
    done
    if [ "$store" = yes ]; then
        for each in store web; do
            "$python" "$here/vendor.py" unpack "$wheels" "$1/ccagent-$each/usr/lib/ccagent-$each" \
                --arch "$arch" --list "wheels-$each.txt"
        done
    else
        rm -r "$1/ccagent-store" "$1/ccagent-web"
    fi
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
