/* Replaces gettimeofday by a clock that is 16 times as fast and begins at boot.
 *
 * perftest calls it only to measure the processor's frequency, in a loop of 0.2 s (0.4 s for
 * latencies) that is most of the time of a short run. Its results are too small or too large by
 * this factor; the cases check that they are numbers. */
#include <sys/time.h>
#include <time.h>

#define FACTOR 16

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec since_boot;

	(void)zone;
	if (clock_gettime(CLOCK_MONOTONIC, &since_boot))
		return -1;
	long long nanoseconds = since_boot.tv_sec * 1000000000LL + since_boot.tv_nsec;
	long long microseconds = nanoseconds * FACTOR / 1000;
	now->tv_sec = microseconds / 1000000;
	now->tv_usec = microseconds % 1000000;
	return 0;
}
