package logstore.spark;

import java.nio.charset.StandardCharsets;

/** Makes exceptions of the core's errors, with the texts that the Python package gives them (core/native.py, errors.py). */
final class Failure {
    static final String RECYCLED = "LogRecycled";
    private static final String PREFIX = "the log is damaged: ";

    private Failure() {}

    /** Called by the native library, which names the exception. */
    static RuntimeException of(String kind, long offset, long lsn, byte[] segment, byte[] bytes) {
        String text = new String(bytes, StandardCharsets.UTF_8);
        String where = new String(segment, StandardCharsets.US_ASCII);
        return new StoreException(kind, kind.equals("CorruptLog") ? damage(text, where, offset, lsn) : text);
    }

    private static String damage(String text, String segment, long offset, long lsn) {
        String bare = text.startsWith(PREFIX) ? text.substring(PREFIX.length()) : text;
        int rest = bare.indexOf(". Nothing was changed");
        String what = rest < 0 ? bare : bare.substring(0, rest);
        String where = segment.isEmpty()
            ? "no log to open"
            : "the log is damaged in segment " + segment + " at offset " + offset + " (LSN " + lsn + ")";
        return where + ": " + what + "; nothing was changed: 'logstore verify DIR' shows the extent; then restore a "
            + "backup, or copy what is readable with 'logstore salvage DIR NEW'";
    }

    /** A writer took the log away while it was read. */
    static StoreException overtaken(String path, long keepLsn) {
        return new StoreException(RECYCLED, "the writer of " + path + " reused a segment before it was read, and from "
            + "LSN " + keepLsn + " on no hold keeps it; nothing is wrong with the log: run this again, or at a quieter "
            + "time");
    }
}
