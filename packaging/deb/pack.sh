# Packs the trees as Debian packages. Read by build.

pack_deb() {
    case $arch in
        x86_64) architecture=amd64 ;;
        aarch64) architecture=arm64 ;;
        *) architecture=$arch ;;
    esac
    for package in ccagent-core ccagent ccagent-slurm ccagent-lustre; do
        tree=$work/root/$package
        mkdir "$tree/DEBIAN"
        sed -e "s/@VERSION@/$version-$release/" -e "s/@ARCHITECTURE@/$architecture/" \
            -e "s/@SIZE@/$(du -k -s --apparent-size "$tree" | cut -f1)/" \
            "$here/deb/$package.control" >"$tree/DEBIAN/control"
        (cd "$tree" && find etc -type f | sort | sed 's,^,/,') >"$tree/DEBIAN/conffiles"
        for script in postinst prerm postrm; do
            [ -e "$here/deb/$package.$script" ] || continue
            install -m 755 "$here/deb/$package.$script" "$tree/DEBIAN/$script"
        done
        (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
        touch --date="@$SOURCE_DATE_EPOCH" "$tree"/DEBIAN/* "$tree/DEBIAN" "$tree"
        dpkg-deb --root-owner-group -Zxz --build "$tree" \
            "$output/${package}_$version-${release}_$architecture.deb" >/dev/null
        rm -rf "$tree/DEBIAN"
    done
}
