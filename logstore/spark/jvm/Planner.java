package logstore.spark;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.internal.SQLConf;
import scala.Option;

/**
 * The child process that plans, in the driver only (planner.py). It is started by the first call and ends with this JVM, which
 * closes its input. If it ends by itself, calls that wait for it fail, and the next call starts another one.
 */
final class Planner {
    /** The setting that names the Python; without it the one of Spark's own settings. */
    static final String PYTHON = "spark.logstore.python";
    private static final int PROTOCOL = 2;

    // Says in one line what is missing, where Python would print a traceback.
    private static final String PROGRAM = String.join("\n",
        "import json, sys",
        "try:",
        "    from logstore.spark.planner import main",
        "except ImportError as error:",
        "    print(json.dumps({'id': 0, 'kind': 'MissingExtra', 'text': f'{sys.executable} cannot import logstore, or what its "
            + "sources for Spark need ({error})'}))",
        "else:",
        "    main()");

    private static final Map<String, Planner> STARTED = new ConcurrentHashMap<>();

    private final String python;
    private final Process process;
    private final BufferedWriter requests;
    private final Map<Long, CompletableFuture<JsonNode>> waiting = new ConcurrentHashMap<>();
    private final CompletableFuture<JsonNode> greeting = new CompletableFuture<>();
    private final AtomicLong numbers = new AtomicLong();

    private Planner(String python) {
        this.python = python;
        waiting.put(0L, greeting);
        try {
            process = new ProcessBuilder(python, "-c", PROGRAM).redirectError(ProcessBuilder.Redirect.INHERIT).start();
        } catch (IOException error) {
            throw missing(error.getMessage());
        }
        requests = new BufferedWriter(new OutputStreamWriter(process.getOutputStream(), StandardCharsets.UTF_8));
        Thread reading = new Thread(this::readReplies, "logstore-planner");
        reading.setDaemon(true);
        reading.start();
    }

    private static StoreException missing(String why) {
        return new StoreException("MissingExtra", "the source logstore-jvm plans its queries with the Python package logstore in "
            + "the driver, and that is missing: " + why + "; install it there, or set " + PYTHON + " to a Python that has it");
    }

    /** The running planner of the session's Python. */
    static Planner get() {
        String python = python();
        Planner found = STARTED.compute(python,
            (name, before) -> before != null && before.process.isAlive() ? before : new Planner(name));
        JsonNode greeting;
        try {
            greeting = found.answer(found.greeting);
        } catch (StoreException error) {
            throw error.kind().equals("MissingExtra") ? missing(error.getMessage().substring("MissingExtra: ".length())) : error;
        }
        if (greeting.intValue() != PROTOCOL) {
            throw missing(python + " has logstore in another version than the jar");
        }
        return found;
    }

    private static String python() {
        String set = SQLConf.get().getConfString(PYTHON, "");
        if (!set.isEmpty()) {
            return set;
        }
        SparkEnv env = SparkEnv.get();
        for (String key : new String[] {PYTHON, "spark.pyspark.driver.python", "spark.pyspark.python"}) {
            Option<String> found = env == null ? Option.empty() : env.conf().getOption(key);
            if (found.isDefined()) {
                return found.get();
            }
        }
        return System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
    }

    boolean isAlive() {
        return process.isAlive();
    }

    static ObjectNode request() {
        return Json.MAPPER.createObjectNode();
    }

    /** The options of a query as the argument of a request. */
    static ObjectNode options(Map<String, String> options) {
        ObjectNode made = request();
        options.forEach(made::put);
        return made;
    }

    /** The result of a call of planner.py with these arguments. */
    JsonNode call(String name, ObjectNode arguments) {
        long number = numbers.incrementAndGet();
        CompletableFuture<JsonNode> reply = new CompletableFuture<>();
        waiting.put(number, reply);
        String line = arguments.put("id", number).put("call", name).toString();
        try {
            synchronized (requests) {
                requests.write(line);
                requests.newLine();
                requests.flush();
            }
        } catch (IOException error) {
            waiting.remove(number);
            throw ended();
        }
        if (!process.isAlive() && waiting.remove(number) != null) {
            throw ended();
        }
        return answer(reply);
    }

    private JsonNode answer(CompletableFuture<JsonNode> reply) {
        JsonNode told;
        try {
            told = reply.get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new StoreException("StoreError", "the query was cancelled while it was planned");
        } catch (ExecutionException error) {
            throw ended();
        }
        if (told.has("kind")) {
            throw new StoreException(told.get("kind").textValue(), told.get("text").textValue());
        }
        return told.get("result");
    }

    private StoreException ended() {
        return new StoreException("StoreError", "the process that plans the queries of the source logstore-jvm, " + python
            + ", has ended: run the query again; the driver's stderr has its last words");
    }

    private void readReplies() {
        try (BufferedReader replies = new BufferedReader(
            new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = replies.readLine(); line != null; line = replies.readLine()) {
                JsonNode told = Json.MAPPER.readTree(line);
                CompletableFuture<JsonNode> reply = waiting.remove(told.get("id").longValue());
                if (reply != null) {
                    reply.complete(told);
                }
            }
        } catch (IOException | RuntimeException error) {
            process.destroy(); // not a planner's reply
        } finally {
            waiting.values().forEach(each -> each.completeExceptionally(new IOException("the planner has ended")));
        }
    }
}
