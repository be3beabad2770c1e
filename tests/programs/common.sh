# Functions of the scripts in this folder; `tests/programs/run` sets the variables in capitals.
#
# A script prints `ok programs.NAME`, `skip programs.NAME: why` or `FAIL programs.NAME: why` for each
# check, as the suites do, and `version PROGRAM VERSION` for what it ran.

set -u
program=$(basename "$0" .sh)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${PROGRAMS_RUN:-}" ]; then
	echo "run this script with tests/programs/run $program" >&2
	exit 2
fi
work=$PROGRAMS_DIR/$program
mkdir -p "$work"
cd "$work" || exit 2
children=
holder=
trap 'stop_all; [ -z "$holder" ] || kill "$holder"' EXIT
trap 'exit 130' INT TERM

# verdict: one line for a check. FAIL also shows the end of a log.
ok() { echo "ok programs.$program.$1"; }
skip() { echo "skip programs.$program.$1: $2"; }
fail() {
	echo "FAIL programs.$program.$1: $2"
	[ -z "${3:-}" ] || tail -n 25 "$3" | cut -c1-300 | sed 's/^/    /'
}

# skip_all WHY: nothing of this script can run.
skip_all() {
	echo "skip programs.$program: $1"
	exit 0
}

# devices: nothing of this script can run where programs find no device in /sys and /dev.
devices() {
	[ -n "${PROGRAMS_DEVICES:-}" ] || skip_all 'needs files in /sys and /dev, which verbs-run cannot present here'
}

version() { echo "version $program $*"; }

# debian PACKAGE...: installs packages (as root), and prints their versions.
debian() {
	local missing=
	for package; do
		dpkg-query -W -f '${Status}' "$package" 2>&1 | grep -q 'ok installed' || missing="$missing $package"
	done
	if [ -n "$missing" ]; then
		[ "$(id -u)" = 0 ] || skip_all "needs apt-get install$missing"
		apt_get install -y $missing >apt.log 2>&1 ||
			{ apt_get update && apt_get install -y $missing; } >>apt.log 2>&1 ||
			skip_all "apt-get install$missing fails: see $work/apt.log"
	fi
	for package; do version "$package" "$(dpkg-query -W -f '${Version}' "$package")"; done
}

apt_get() {
	DEBIAN_FRONTEND=noninteractive timeout -k 10 900 \
		apt-get -q -o DPkg::Lock::Timeout=600 --no-install-recommends "$@"
}

# pypi REQUIREMENT...: a virtual environment with these packages in ./venv; $python is its Python.
pypi() {
	python=$work/venv/bin/python
	if [ "$(cat venv/requirements 2>&1)" != "$*" ]; then
		rm -rf venv
		{ ${PROGRAMS_PYTHON:-python3} -m venv venv &&
			timeout -k 10 600 venv/bin/pip install -q --disable-pip-version-check "$@"; } >pip.log 2>&1 ||
			skip_all "pip install $* fails: see $work/pip.log"
		echo "$*" >venv/requirements
	fi
	venv/bin/pip list --disable-pip-version-check --format=freeze 2>/dev/null |
		grep -iE "^($(echo "$*" | sed -E 's/==[^ ]*//g; s/ +/|/g; s/--[a-z-]*\|?//g'))==" | while IFS= read -r line; do version "${line/==/ }"; done
}

# pypi_source NAME VERSION: the source archive of a package in ./NAME-VERSION, which has its tests.
pypi_source() {
	[ -d "$1-$2" ] && return
	timeout -k 10 600 ${PROGRAMS_PYTHON:-python3} -m pip download -q --disable-pip-version-check \
		--no-deps --no-binary "$1" "$1==$2" >source.log 2>&1 && tar -xf "$1-$2.tar.gz" ||
		skip_all "pip cannot download the source of $1 $2: see $work/source.log"
}

# debian_source NAME VERSION FILE SHA256: the source archive of a Debian package, below `pool/main` of
# the mirror that apt uses, in ./NAME-VERSION.
debian_source() {
	local mirror
	[ -d "$1-$2" ] && return
	mirror=$(apt-get --print-uris update 2>source.log | sed -nE "s|^'(.*/debian)/dists/.*|\1|p" | head -n 1)
	if [ -z "$mirror" ]; then
		echo "apt's sources name no mirror of Debian" >source.log
		return 1
	fi
	rm -rf unpacked && mkdir unpacked &&
		timeout -k 10 600 /usr/lib/apt/apt-helper download-file "$mirror/pool/main/$3" "$(basename "$3")" "SHA256:$4" >source.log 2>&1 &&
		tar -xf "$(basename "$3")" -C unpacked --strip-components=1 >>source.log 2>&1 && mv unpacked "$1-$2"
}

# crate NAME VERSION: the source of a published crate in ./NAME-VERSION, with its Cargo.lock. A script
# may name several.
crate() {
	version "$1 $2"
	[ -d "$1-$2" ] && return
	cargo info --quiet "$1@$2" >crate.log 2>&1
	local source
	source=$(find "${CARGO_HOME:-$HOME/.cargo}/registry/src" -maxdepth 2 -name "$1-$2" | head -n 1)
	[ -n "$source" ] || skip_all "cargo cannot download $1 $2: see $work/crate.log"
	cp -r "$source" . && chmod -R u+w "$1-$2"
	# A workspace, because cargo would take it for a package of ours.
	printf '\n[workspace]\n' >>"$1-$2/Cargo.toml"
}

# cargo_tests FOLDER ARGUMENT...: builds and runs the tests of a crate's source; a check for each program.
# $prefix begins the names of the checks. It fails if cargo cannot build.
cargo_tests() {
	local folder=$1 limit=${PROGRAMS_LIMIT:-300} line name listed
	shift
	(cd "$folder" && CARGO_TARGET_DIR=$work/target timeout -k 10 1500 cargo test --locked --no-run "$@") >build.log 2>&1 ||
		{ fail "${prefix:-}build" 'cargo cannot build it' build.log && return 1; }
	# Lines such as `Executable tests/loop.rs (target/debug/deps/loop-0123)`.
	sed -nE 's/^ *Executable (unittests )?([^ ]*) \((.*)\)$/\2 \3/p' build.log >tests.list
	while read -r line name; do
		# Some have no tests, such as those of binaries.
		listed=$(cargo_test "$folder" 60 "$name" --list 2>&1 </dev/null) && [ "${listed%: test*}" = "$listed" ] && continue
		check "${prefix:-}$(echo "$line" | sed -E 's/\.rs$//; s|/|.|g')" cargo_test "$folder" "$limit" "$name"
	done <tests.list
}

cargo_test() (cd "$1" && soft "$2" "$3" --test-threads=1 ${skipped:-} ${4:-})

# soft SECONDS COMMAND...: runs a command on our libraries, with soft devices, for at most so long, in
# the network of `network`.
soft() {
	local limit=$1
	shift
	${replace:-} timeout -k 10 "$limit" ${enter:-} $PROGRAMS_RUN "$@"
}

# network ADDRESS...: from here on, `soft` runs commands in a network of their own, with an interface
# that is no loopback and has these addresses. Packets between them do not leave the machine.
network() {
	local user= tries="ip link set lo up && ip link add soft-a type veth peer name soft-b &&
		ip link set soft-a up && ip link set soft-b up"
	for address; do tries="$tries && ip address add $address/24 dev soft-a"; done
	[ "$(id -u)" = 0 ] || user=--map-root-user
	rm -f network.ready
	unshare $user --net sh -c "$tries && touch network.ready && exec sleep 3600" >network.log 2>&1 </dev/null &
	holder=$!
	until_true 10 test -e network.ready || skip_all "no network namespace: see $work/network.log"
	enter="nsenter --target $holder ${user:+--user --preserve-credentials} --net"
}

# start LOG COMMAND...: starts a server, with the file $input as its input; stop_all ends it. $! is its
# number.
start() {
	local log=$1
	shift
	# `soft` replaces the subshell, so that a signal reaches `timeout`, which forwards it.
	(replace=exec && "$@") >"$log" 2>&1 <"${input:-/dev/null}" &
	children="$children $!"
}

stop_all() {
	for child in $children; do
		# `timeout` leads a process group.
		kill -- "-$child" 2>/dev/null || kill "$child" 2>/dev/null
	done
	for child in $children; do
		wait "$child" 2>/dev/null
	done
	children=
}

# until_true SECONDS COMMAND...: polls until the command succeeds.
until_true() {
	local end=$(($(date +%s) + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$(date +%s)" -lt "$end" ] || return 1
		sleep 0.1
	done
}

# listens PORT: a process listens at this TCP port.
listens() {
	local net=/proc/${holder:-self}/net
	grep -qi ":$(printf %04x "$1") [0-9a-f:]* 0a " "$net/tcp" "$net/tcp6"
}

# soft_listens PORT: a process listens at this port of RDMA_PS_TCP on a soft device.
soft_listens() { grep -qE "@verbs-soft/cm/[0-9]+/106/$1/" "/proc/${holder:-self}/net/unix"; }

# check NAME COMMAND...: ok if the command succeeds; its output is in ./NAME.log.
check() {
	local name=$1 status log
	shift
	log=$work/$(echo "$name" | tr ' /' '__').log
	"$@" >"$log" 2>&1 </dev/null
	status=$?
	case $status in
	0) ok "$name" ;;
	124 | 137) fail "$name" "did not end in time (status $status)" "$log" ;;
	*) fail "$name" "status $status" "$log" ;;
	esac
	return 0
}
