package logstore.spark;

import java.lang.ref.Cleaner;

/**
 * Owns a scan of the core and its current batch. close() frees both. Where a thread other than the reading one ends a task,
 * Spark may still be reading the batch in the first one; then they are freed when nothing refers to them any more.
 */
final class BatchMemory implements AutoCloseable {
    private static final Cleaner CLEANER = Cleaner.create();

    private final Addresses addresses;
    private final Cleaner.Cleanable cleanable;
    private Thread reading = Thread.currentThread();

    BatchMemory(long scan) {
        addresses = new Addresses(scan);
        cleanable = CLEANER.register(this, addresses);
    }

    long scan() {
        return addresses.scan;
    }

    /** Takes this batch over, and frees the one before it. The calling thread is the one that reads it. */
    synchronized void replace(long batch) {
        reading = Thread.currentThread();
        long before = addresses.batch;
        addresses.batch = batch;
        if (before != 0) {
            Scanner.freeBatch(before);
        }
    }

    /** Another scan takes the place of this one, which has given no batch. */
    synchronized void reopen(long scan) {
        Scanner.freeScan(addresses.scan);
        addresses.scan = scan;
    }

    @Override
    public synchronized void close() {
        if (Thread.currentThread() == reading) {
            cleanable.clean();
        }
    }

    /** What the cleaner frees; it must not refer to the owner. */
    private static final class Addresses implements Runnable {
        private long scan;
        private long batch;

        Addresses(long scan) {
            this.scan = scan;
        }

        @Override
        public void run() {
            if (batch != 0) {
                Scanner.freeBatch(batch);
                batch = 0;
            }
            Scanner.freeScan(scan);
        }
    }
}
