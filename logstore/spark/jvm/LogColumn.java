package logstore.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * One column of the scanner's current batch, read where the core has put it: Arrow's layout, with a bitmap of the rows that are
 * not null, and int32 offsets for values of variable length. Spark asks for rows below the batch's number of rows only.
 *
 * A column keeps its scan reachable, so the memory that it reads is freed by the next batch or an ended task, never before.
 */
final class LogColumn extends LogVector {
    private final BatchMemory memory; // keeps it reachable
    private final LogColumn items; // of a list
    private final boolean wideIndex;
    private UTF8String[] texts; // by index, or the only text of a column without values; null: no such column
    private long valid;
    private long offsets;
    private long values;
    private long nulls;
    private boolean allNull;

    LogColumn(DataType type, BatchMemory memory, LogColumn items, UTF8String[] texts, boolean wideIndex) {
        super(type);
        this.memory = memory;
        this.items = items;
        this.texts = texts;
        this.wideIndex = wideIndex;
    }

    UTF8String[] texts() {
        return texts;
    }

    void setTexts(UTF8String[] now) {
        texts = now;
    }

    /** Shows the column with these numbers of a layout. */
    void show(long[] layout, int at) {
        valid = layout[at + Scanner.VALID];
        offsets = layout[at + Scanner.OFFSETS];
        values = layout[at + Scanner.VALUES];
        nulls = layout[at + Scanner.NULLS];
        allNull = nulls > 0 && nulls == layout[at + Scanner.ROWS];
    }

    BatchMemory memory() {
        return memory;
    }

    @Override
    public int numNulls() {
        return (int) nulls;
    }

    @Override
    public boolean isNullAt(int row) {
        return valid != 0
            && (allNull || (Platform.getByte(null, valid + (row >> 3)) >> (row & 7) & 1) == 0);
    }

    @Override
    public boolean getBoolean(int row) {
        return (Platform.getByte(null, values + (row >> 3)) >> (row & 7) & 1) != 0;
    }

    @Override
    public byte getByte(int row) {
        return Platform.getByte(null, values + row);
    }

    @Override
    public int getInt(int row) {
        return Platform.getInt(null, values + 4L * row);
    }

    @Override
    public long getLong(int row) {
        return Platform.getLong(null, values + 8L * row);
    }

    @Override
    public long[] getLongs(int row, int count) {
        long[] made = new long[count];
        Platform.copyMemory(null, values + 8L * row, made, Platform.LONG_ARRAY_OFFSET, 8L * count);
        return made;
    }

    private int begin(int row) {
        return Platform.getInt(null, offsets + 4L * row);
    }

    @Override
    public UTF8String getUTF8String(int row) {
        if (isNullAt(row)) {
            return null;
        }
        if (texts == null) {
            int begin = begin(row);
            return UTF8String.fromAddress(null, values + begin, begin(row + 1) - begin);
        }
        if (values == 0) {
            return texts[0];
        }
        return texts[wideIndex ? getInt(row) : getByte(row) & 0x7f];
    }

    @Override
    public byte[] getBinary(int row) {
        if (isNullAt(row)) {
            return null;
        }
        int begin = begin(row);
        byte[] made = new byte[begin(row + 1) - begin];
        Platform.copyMemory(null, values + begin, made, Platform.BYTE_ARRAY_OFFSET, made.length);
        return made;
    }

    @Override
    public ColumnarArray getArray(int row) {
        if (isNullAt(row)) {
            return null;
        }
        int begin = begin(row);
        return new ColumnarArray(items, begin, begin(row + 1) - begin);
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        return items;
    }
}
