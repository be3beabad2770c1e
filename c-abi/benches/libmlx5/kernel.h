/* The side of the device: see kernel.c. */

/* Completes `count` writes of the queue pair. */
void complete(unsigned count);
