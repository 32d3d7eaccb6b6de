# Packs the trees as RPM packages. Read by build.

pack_rpm() {
    mkdir "$work/rpm"
    rpmbuild -bb --quiet --nodeps --target "$arch" \
        --define "_topdir $work/rpm" --define "_rpmdir $work/rpm/out" \
        --define "_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" \
        --define "staged $work/root" --define "package_version $version" \
        --define "package_release $release" "$here/rpm/ccagent.spec" >"$work/rpm/log" 2>&1 ||
        { cat "$work/rpm/log" >&2; return 1; }
    mv "$work"/rpm/out/*.rpm "$output"
}
