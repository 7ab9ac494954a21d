package logstore.spark;

/** A failure with the text of the Python package's exception; its message begins with the name of that class. */
public final class StoreException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    private final String kind;

    StoreException(String kind, String text) {
        super(kind + ": " + text);
        this.kind = kind;
    }

    /** The name of the exception's class in logstore.errors, such as CorruptLog. */
    public String kind() {
        return kind;
    }
}
