# Functions of the scripts in this folder: runs of several sides in turns, and the ratios between them.
. "$(dirname "$0")/../common.sh"
runs=${PROGRAMS_RUNS:-5}

# turn ROW SIDE COMMAND...: the command prints one number, a value of the row for this side.
turn() {
	local row=$1 side=$2 value
	shift 2
	value=$("$@" 2>"$work/$row.$side.log") && [ -n "$value" ] ||
		{ fail "$row" "no number from $side" "$work/$row.$side.log" && return 1; }
	echo "$value" >>"$work/$row.$side.values"
}

# forget: discards the values of an earlier run.
forget() { rm -f "$work"/*.values; }

# ratio ROW SIDE BESIDE [TARGET]: the median of the runs' ratios, such as '<= 3' or '>= 0.5' for a target.
ratio() {
	paste "$work/$1.$2.values" "$work/$1.$3.values" | awk -v name="programs.$program.$1" -v a="$2" -v b="$3" -v target="${4:-}" '
		function median(of, n,   i, j, t) {
			for (i = 2; i <= n; i++) for (j = i; j > 1 && of[j] < of[j - 1]; j--) { t = of[j]; of[j] = of[j - 1]; of[j - 1] = t }
			return of[int(n / 2) + 1]
		}
		NF == 2 { n++; x[n] = $1; y[n] = $2; r[n] = $1 / $2 }
		END {
			if (n == 0) { print "FAIL " name ": no values of both sides"; exit }
			m = median(r, n); split(target, want)
			word = target == "" ? "" : (want[1] == "<=" ? m <= want[2] : m >= want[2]) ? ", target " target : ", target " target " MISSED"
			printf "ratio %s: %s %.4g beside %s %.4g: %.3f (%.3f to %.3f, %d runs)%s\n", name, a, median(x, n), b, median(y, n), m, r[1], r[n], n, word
		}'
}
