# Builds the source package and the packages with rpmbuild. Sourced by build.

pack_rpm() {
    mkdir -p "$work/rpm/SOURCES"
    dated "$source"
    archive "$work" "ccagent-$version" | gzip -9n >"$work/rpm/SOURCES/ccagent-$version.tar.gz"
    mkdir "$work/wheels.d"
    xargs -d '\n' -a "$work/wheels" cp -t "$work/wheels.d"
    dated "$work/wheels.d"
    archive "$work/wheels.d" . >"$work/rpm/SOURCES/ccagent-wheels-$version.tar"
    cp "$here/tree/ccagent-core/usr/lib/sysusers.d/ccagent.conf" "$work/rpm/SOURCES/ccagent.sysusers"
    dated "$work/rpm/SOURCES"
    # rpmbuild --rebuild gets no options: the specification itself has them.
    sed -e "s/^\(.*global package_version\) .*/\1 $version}/" \
        -e "s/^\(.*global package_release\) .*/\1 $release}/" \
        -e "s/ - 1\.0\.0-1$/ - $version-$release/" \
        "$here/rpm/ccagent-core.spec" >"$work/rpm/ccagent-core.spec"
    set --
    [ "$store" = yes ] || set -- --define "without_store 1"
    [ "$compression" = xz ] || set -- "$@" --define "payload w1.gzdio"
    rpmbuild -ba "$@" --quiet --nodeps --target "$arch" \
        --define "_topdir $work/rpm" \
        --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
        --define "packager $packager" --define "python $python" \
        "$work/rpm/ccagent-core.spec" >"$work/rpm/log" 2>&1 ||
        { cat "$work/rpm/log" >&2; return 1; }
    grep '^packaging/build: ccagent-store without' "$work/rpm/log" >&2 || :
    publish "$work"/rpm/RPMS/*.rpm "$work"/rpm/SRPMS/*.rpm
}

archive() {
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --format=gnu --directory="$1" "$2"
}
