/** Bounds of messages that have arrived in part. */
export interface UnfinishedLimits {
  /** A message must be complete within this time after its first byte. */
  readonly messageMs: number;
  /** Bytes of the unfinished messages of one connection. */
  readonly unfinishedBytesPerConnection: number;
  /** Bytes of the unfinished messages of all connections. */
  readonly unfinishedBytes: number;
  /**
   * A message of at most this many bytes is read without waiting for room, so that small requests are served at the bounds, too.
   * Its bytes are counted only if there is room for them.
   */
  readonly smallMessageBytes: number;
}

/** Thrown to the reader of a message that was not complete in time. The code tells other rooms what it is. */
export class MessageTimeoutError extends Error {
  override readonly name = 'MessageTimeoutError';
  readonly code = 'ERR_MESSAGE_TIMEOUT';

  constructor(messageMs: number, receivedBytes: number) {
    super(
      `The message was not complete ${messageMs / 1000} s after its first byte: ${receivedBytes} bytes of it had been read. ` +
        'Send the rest of a message right after its beginning, and large data in several smaller messages.',
    );
  }
}

/** The bytes of the unfinished messages of one connection, or of all. At the bound, the favoured message alone may grow. */
interface Usage {
  bytes: number;
  favoured: UnfinishedMessage | undefined;
}

/**
 * Counts the bytes of unfinished messages, and gives up those that take too long. Where a bound is reached, messages that are
 * not small wait for room, and so their readers stop reading. Each bound keeps room for one whole message: the favoured one,
 * which can always become complete. So messages that arrive side by side never wait for each other without end.
 */
export class UnfinishedMessages {
  readonly #limits: UnfinishedLimits;
  readonly #connectionShare: number;
  readonly #totalShare: number;
  readonly #connections = new WeakMap<object, Usage>();
  readonly #total: Usage = { bytes: 0, favoured: undefined };
  /** In the order of their first bytes, and so of their deadlines. */
  readonly #open = new Set<UnfinishedMessage>();
  /** In the order in which they asked for room. */
  readonly #waiting = new Set<UnfinishedMessage>();
  #timer: NodeJS.Timeout | undefined;

  constructor(limits: UnfinishedLimits, largestMessageBytes: number) {
    this.#limits = limits;
    this.#connectionShare = limits.unfinishedBytesPerConnection - largestMessageBytes;
    this.#totalShare = limits.unfinishedBytes - largestMessageBytes;
  }

  /** Bytes counted now. */
  get bytes(): number {
    return this.#total.bytes;
  }

  /**
   * The unfinished message of one request; it can be used for each of the request's messages in turn. `connection` stands for the connection.
   * `onTimeout` is called when the message has to be given up.
   */
  ofRequest(connection: object, onTimeout: (error: MessageTimeoutError) => void): UnfinishedMessage {
    let found = this.#connections.get(connection);
    if (found === undefined) {
      found = { bytes: 0, favoured: undefined };
      this.#connections.set(connection, found);
    }
    return new UnfinishedMessage(this, found, onTimeout);
  }

  /** Called by the message. */
  begin(message: UnfinishedMessage): void {
    this.#open.add(message);
    this.#timer ??= setTimeout(this.#giveUp, this.#limits.messageMs).unref();
  }

  /**
   * Called by the message. Returns undefined if the message is small or there is room for all its bytes.
   * Otherwise returns a promise that resolves when there is room, or when the message ends.
   */
  admit(message: UnfinishedMessage): Promise<void> | undefined {
    if (this.#fit(message) || this.#isSmall(message)) return undefined;
    this.#waiting.add(message);
    return new Promise((resolve) => {
      message.resume = resolve;
    });
  }

  /** Called by the message. */
  end(message: UnfinishedMessage): void {
    const { connection, countedBytes } = message;
    this.#open.delete(message);
    connection.bytes -= countedBytes;
    this.#total.bytes -= countedBytes;
    if (connection.favoured === message) connection.favoured = undefined;
    if (this.#total.favoured === message) this.#total.favoured = undefined;
    if (this.#waiting.delete(message)) message.resume();
    for (const waiting of this.#waiting) {
      if (this.#fit(waiting)) {
        this.#waiting.delete(waiting);
        waiting.resume();
      } else if (this.#isFull(waiting)) return;
    }
  }

  /** Counts the bytes that the message has in all, if there is room. */
  #fit(message: UnfinishedMessage): boolean {
    const { connection } = message;
    const more = message.heldBytes - message.countedBytes;
    const roomInConnection = more <= this.#connectionShare - unfavouredBytes(connection);
    const roomInTotal = more <= this.#totalShare - unfavouredBytes(this.#total);
    if ((!roomInConnection || !roomInTotal) && this.#isSmall(message)) return false;
    if (!roomInConnection || !roomInTotal) connection.favoured ??= message;
    if (!roomInTotal && connection.favoured === message) this.#total.favoured ??= message;
    if (!roomInConnection && connection.favoured !== message) return false;
    if (!roomInTotal && this.#total.favoured !== message) return false;
    connection.bytes += more;
    this.#total.bytes += more;
    message.countedBytes += more;
    return true;
  }

  #isSmall({ heldBytes }: UnfinishedMessage): boolean {
    return heldBytes <= this.#limits.smallMessageBytes;
  }

  /** Whether no message can be admitted now, of whatever connection: those behind this one need not be asked. */
  #isFull({ heldBytes, countedBytes }: UnfinishedMessage): boolean {
    return (
      this.#total.favoured !== undefined && heldBytes - countedBytes > this.#totalShare - unfavouredBytes(this.#total)
    );
  }

  readonly #giveUp = () => {
    this.#timer = undefined;
    const now = performance.now();
    for (const message of this.#open) {
      const leftMs = message.begunAt + this.#limits.messageMs - now;
      if (leftMs > 0) {
        this.#timer = setTimeout(this.#giveUp, leftMs).unref();
        return;
      }
      message.giveUp(new MessageTimeoutError(this.#limits.messageMs, message.heldBytes));
    }
  };
}

/** What has arrived of a message that is not complete. */
export class UnfinishedMessage {
  readonly #all: UnfinishedMessages;
  readonly #onTimeout: (error: MessageTimeoutError) => void;
  readonly connection: Usage;
  /** Bytes that have arrived. */
  heldBytes = 0;
  /** Bytes for which there was room. */
  countedBytes = 0;
  /** When the first byte was seen; milliseconds of `performance.now()`. */
  begunAt = 0;
  /** Wakes the reader that waits for room. */
  resume: () => void = () => undefined;
  #begun = false;

  constructor(all: UnfinishedMessages, connection: Usage, onTimeout: (error: MessageTimeoutError) => void) {
    this.#all = all;
    this.connection = connection;
    this.#onTimeout = onTimeout;
  }

  /** Notes how many bytes have arrived. Returns a promise if there is no room: nothing more should be read until it resolves. */
  hold(bytes: number): Promise<void> | undefined {
    if (!this.#begun) {
      this.#begun = true;
      this.begunAt = performance.now();
      this.#all.begin(this);
    }
    this.heldBytes = bytes;
    return this.#all.admit(this);
  }

  /** The message is complete, or nobody wants it any more. Idempotent; the next `hold` begins another message. */
  end(): void {
    if (!this.#begun) return;
    this.#begun = false;
    this.#all.end(this);
    this.heldBytes = 0;
    this.countedBytes = 0;
  }

  giveUp(error: MessageTimeoutError): void {
    this.end();
    this.#onTimeout(error);
  }
}

function unfavouredBytes({ bytes, favoured }: Usage): number {
  return bytes - (favoured?.countedBytes ?? 0);
}
