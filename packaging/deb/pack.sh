# Packs the trees as Debian packages. Sourced by build.

pack_deb() {
    case $arch in
        x86_64) machine=amd64 ;;
        aarch64) machine=arm64 ;;
        *) machine=$arch ;;
    esac
    root=$work/deb
    # rpmbuild has created the same trees.
    laid_out=$(find "$work" -type d -path '*/built/root' | head -n 1)
    if [ -n "$laid_out" ]; then
        mv "$laid_out" "$root"
    else
        layout "$root"
    fi
    documents=$root/ccagent-core/usr/share/doc/ccagent-core
    # Debian's name of the architecture.
    gzip -9n <"$documents/CHANGELOG.md" >"$documents/changelog.gz"
    rm "$documents/CHANGELOG.md"
    sed -i 's,](CHANGELOG.md),](changelog.gz),' "$documents/README.md"
    level=3
    [ "$compression" = xz ] || level=1
    packages="ccagent-core ccagent-node ccagent-slurm ccagent-lustre"
    with_modules=ccagent-core
    if [ "$store" = yes ]; then
        packages="$packages ccagent-store ccagent-web"
        with_modules="$with_modules ccagent-store ccagent-web"
    fi
    for package in $with_modules; do
        install -D -m 644 "$here/deb/$package.lintian-overrides" \
            "$root/$package/usr/share/lintian/overrides/$package"
    done
    for package in $packages; do
        tree=$root/$package
        about=$tree/usr/share/doc/$package
        mkdir -p "$about" "$tree/DEBIAN"
        modules=
        case $package in
            ccagent-core) modules=$tree/usr/lib/ccagent ;;
            ccagent-store | ccagent-web) modules=$tree/usr/lib/$package ;;
        esac
        # shellcheck disable=SC2086
        "$python" -I -S "$here/deb/copyright.py" "$top/LICENSE" $modules >"$about/copyright"
        debian_changelog | gzip -9n >"$about/changelog.Debian.gz"
        dated "$tree"
        architecture=$(sed -n 's/^Architecture: *//p' "$here/deb/$package.control")
        [ "$architecture" = all ] || architecture=$machine
        sed -e "s/@VERSION@/$version-$release/" -e "s/@ARCHITECTURE@/$architecture/" \
            -e "s/@PACKAGER@/$packager/" $(ranges) \
            -e "s/@SIZE@/$(du -k -s --apparent-size "$tree" | cut -f1)/" \
            "$here/deb/$package.control" >"$tree/DEBIAN/control"
        (cd "$tree" && find etc -type f 2>/dev/null | sort | sed 's,^,/,') >"$tree/DEBIAN/conffiles"
        [ -s "$tree/DEBIAN/conffiles" ] || rm "$tree/DEBIAN/conffiles"
        for script in postinst prerm postrm triggers; do
            [ -e "$here/deb/$package.$script" ] || continue
            install -m 755 "$here/deb/$package.$script" "$tree/DEBIAN/$script"
        done
        case $package in
            ccagent-node | ccagent-slurm | ccagent-lustre)
                install -m 755 "$here/deb/role" "$tree/DEBIAN/postinst"
                install -m 755 "$here/deb/role" "$tree/DEBIAN/postrm"
                ;;
        esac
        [ ! -e "$tree/DEBIAN/triggers" ] || chmod 644 "$tree/DEBIAN/triggers"
        (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
        touch --date="@$SOURCE_DATE_EPOCH" "$tree"/DEBIAN/* "$tree/DEBIAN" "$tree"
        dpkg-deb --root-owner-group "-Z$compression" "-z$level" --build "$tree" \
            "$work/${package}_$version-${release}_$architecture.deb" >/dev/null
    done
    publish "$work"/*.deb
}

# The versions of the program that suit a role, and those that suit modules of other packages.
ranges() {
    echo "$version" | awk -F. '{
        printf "-es/@MAJOR@/%s/ -es/@NEXT_MAJOR@/%s.0.0~/ ", $1, $1 + 1
        printf "-es/@SERIES@/%s.%s/ -es/@NEXT_SERIES@/%s.%s.0~/", $1, $2, $1, $2 + 1
    }'
}

debian_changelog() {
    cat <<EOF
ccagent ($version-$release) unstable; urgency=medium

  * Version $version.
  * The changes of ccagent are in the package ccagent-core.

 -- $packager  $(date -u --date="@$SOURCE_DATE_EPOCH" "+%a, %d %b %Y %H:%M:%S +0000")
EOF
}
