# The tree of each package, below a directory: DIRECTORY/{ccagent-core,ccagent,...}. Read by build.

layout() {
    mkdir "$1"
    cp -a "$here/tree/." "$1"
    core=$1/ccagent-core
    home=$core/usr/lib/ccagent
    "$python" "$here/vendor.py" unpack "$wheels" "$home" --arch "$arch"
    "$python" "$here/vendor.py" build "$wheels" "$home" "$work/source" --arch "$arch"

    generated "$top/build/man" "$core/usr/share/man"
    generated "$top/build/completions" "$core/usr/share"
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

# What the commands have written beforehand, if they have: build/man/*.1, *.5 and
# build/completions/{ccagent.bash,_ccagent,ccagent.fish}.
generated() {
    [ -d "$1" ] || return 0
    for file in "$1"/*; do
        case ${file##*/} in
            *.[1-8]) place=man${file##*.}/${file##*/} ;;
            ccagent.bash) place=bash-completion/completions/ccagent ;;
            _ccagent) place=zsh/site-functions/_ccagent ;;
            ccagent.fish) place=fish/vendor_completions.d/ccagent.fish ;;
            *) continue ;;
        esac
        mkdir -p "$2/${place%/*}"
        cp "$file" "$2/$place"
        case $place in man*) gzip -9n "$2/$place" ;; esac
    done
}
