package logstore.spark;

/**
 * The core's record scanner: the functions of scanner.c. A scan and a batch are addresses, 0 for none; whoever has one frees it
 * once. One thread at a time uses a scan.
 */
final class Scanner {
    /** The layout of a batch: the number of rows, then for each column these numbers. */
    static final int VALID = 0;
    static final int OFFSETS = 1;
    static final int VALUES = 2;
    static final int VALUE_BYTES = 3;
    static final int NULLS = 4;
    static final int ROWS = 5;
    static final int COLUMN_NUMBERS = 6;

    /** What next() returns at the end of the range. */
    static final long END = -1;

    static {
        NativeLibrary.load();
    }

    private Scanner() {}

    static long[] newLayout() {
        return new long[1 + COLUMN_NUMBERS * columns()];
    }

    /** Opens a scan; the numbers are those of RangeReader.numbers(). */
    static native long open(byte[] directory, long[] numbers, long[] queueIds, long[] ids, long[] named);

    /** The next batch, with its layout. 0: this part of the log has none, call again. END: no more. */
    static native long next(long scan, long[] layout);

    /** How many columns a layout has; the last one has the items of the queue_ids. */
    static native int columns();

    /** The record type with this number in the column type; 0: the scan has met none so far. */
    static native int type(long scan, int number);

    /** The parts that a permissive scan has skipped: the first LSN and the end of each. */
    static native long[] missing(long scan);

    static native void freeBatch(long batch);

    static native void freeScan(long scan);
}
