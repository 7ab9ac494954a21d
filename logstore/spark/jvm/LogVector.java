package logstore.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column of a batch. It has the values of its own type; Spark asks for no other, and a mistake there is an exception. */
abstract class LogVector extends ColumnVector {
    LogVector(DataType type) {
        super(type);
    }

    private UnsupportedOperationException other(String kind) {
        return new UnsupportedOperationException("a column of type " + type.simpleString() + " has no value of type " + kind);
    }

    @Override
    public void close() {
        // RangeReader frees the batch.
    }

    @Override
    public boolean hasNull() {
        return numNulls() > 0;
    }

    @Override
    public boolean getBoolean(int row) {
        throw other("boolean");
    }

    @Override
    public byte getByte(int row) {
        throw other("byte");
    }

    @Override
    public short getShort(int row) {
        throw other("short");
    }

    @Override
    public int getInt(int row) {
        throw other("int");
    }

    @Override
    public long getLong(int row) {
        throw other("long");
    }

    @Override
    public float getFloat(int row) {
        throw other("float");
    }

    @Override
    public double getDouble(int row) {
        throw other("double");
    }

    @Override
    public UTF8String getUTF8String(int row) {
        throw other("string");
    }

    @Override
    public byte[] getBinary(int row) {
        throw other("binary");
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        throw other("decimal");
    }

    @Override
    public ColumnarArray getArray(int row) {
        throw other("array");
    }

    @Override
    public ColumnarMap getMap(int row) {
        throw other("map");
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        throw other("struct");
    }
}
