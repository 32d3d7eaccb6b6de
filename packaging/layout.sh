# The tree of each package, below a directory: DIRECTORY/{ccagent-core,ccagent,...}. Read by build.

layout() {
    mkdir "$1"
    cp -a "$here/tree/." "$1"
    core=$1/ccagent-core
    home=$core/usr/lib/ccagent
    "$python" "$here/vendor.py" unpack "$wheels" "$home" --arch "$arch"
    "$python" "$here/vendor.py" build "$wheels" "$home" "$work/source" --arch "$arch"

    mkdir -p "$core/etc/ccagent/conf.d"
    generated "$home" "$core"
    cp -R "$here/examples" "$core/usr/share/ccagent"
    for package in "$1"/*; do
        mkdir -p "$package/usr/share/doc/${package##*/}"
        cp "$top/LICENSE" "$package/usr/share/doc/${package##*/}/copyright"
    done
    cp "$top/README.md" "$top/CHANGELOG.md" "$core/usr/share/doc/ccagent-core"
    mkdir -p "$core/var/lib/ccagent"

    find "$1" -type d -exec chmod 755 {} +
    find "$1" -type f ! -perm -100 -exec chmod 644 {} +
    find "$1" -path '*/etc/ccagent/*' -type f -exec chmod 640 {} +
    chmod 750 "$core/etc/ccagent" "$core/etc/ccagent/conf.d" "$core/var/lib/ccagent"
    for package in ccagent ccagent-slurm ccagent-lustre; do
        chmod 750 "$1/$package/etc/ccagent" "$1/$package/etc/ccagent/conf.d"
    done
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

    # Unchecked: no time stamps of sources are compared, which a package system may change.
    for each in $pythons; do
        "$each" -I -S -m compileall -q --invalidation-mode unchecked-hash -s "$core" -p / "$home"
    done
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

# Man pages, completions and the configuration file, which the program writes itself.
generated() {
    program=$1
    if [ "$arch" != "$(uname -m)" ]; then
        program=$work/native
        "$python" "$here/vendor.py" fetch "$wheels" --arch "$(uname -m)"
        "$python" "$here/vendor.py" unpack "$wheels" "$program" --arch "$(uname -m)"
        cp -a "$1/ccagent" "$1/__main__.py" "$program"
    fi
    "$python" -I -S -B "$program" generate "$work/generated" >/dev/null
    cp -R "$work/generated/share" "$2/usr"
    find "$2/usr/share/man" -type f -exec gzip -9n {} +
    sed -e 's,^#lock-directory = "".*,lock-directory = "/run/ccagent",' \
        -e 's,^#\[outbox\]$,[outbox],' \
        -e '/^\[outbox\]/,/^#directory = ""/s,^#directory = "".*,directory = "/var/lib/ccagent/outbox",' \
        "$work/generated/ccagent.toml" >"$2/etc/ccagent/ccagent.toml"
    [ "$(grep -c '^[^#]' "$2/etc/ccagent/ccagent.toml")" = 3 ] || {
        echo "packaging/layout.sh: the template of the configuration is another" >&2
        exit 1
    }
}
