/** Bounds of partly received messages. */
export interface UnfinishedLimits {
  /** Milliseconds from the first byte of a message until it must be complete. */
  readonly messageMs: number;
  /** Bytes of the unfinished messages of one connection. */
  readonly unfinishedBytesPerConnection: number;
  /** Bytes of the unfinished messages of all connections. */
  readonly unfinishedBytes: number;
  /**
   * A message of at most this many bytes is read without waiting for room, so that small requests are served at the
   * bounds. Its bytes are counted only if there is room for them.
   */
  readonly smallMessageBytes: number;
}

/** Thrown to the reader of a message that was not complete in time. Other rooms recognise it by its code. */
export class MessageTimeoutError extends Error {
  override readonly name = 'MessageTimeoutError';
  readonly code = 'ERR_MESSAGE_TIMEOUT';

  constructor(messageMs: number, receivedBytes: number) {
    super(
      `The message was not complete ${messageMs / 1000} s after its first byte: ${receivedBytes} bytes had arrived. ` +
        'Send each message without a pause, and split large data into several smaller messages.',
    );
  }
}

/** Bytes of the unfinished messages of one connection, or of all. At the bound, only the favoured message may grow. */
interface Usage {
  bytes: number;
  favoured: UnfinishedMessage | undefined;
}

/**
 * Counts the bytes of unfinished messages, and fails those that take too long. At a bound, messages that are not small
 * wait for room, and their readers stop reading. Each bound reserves room for one whole message, the favoured one,
 * which can always become complete. So messages never wait for each other forever.
 */
export class UnfinishedMessages {
  readonly #limits: UnfinishedLimits;
  readonly #connectionShare: number;
  readonly #totalShare: number;
  readonly #connections = new WeakMap<object, Usage>();
  readonly #total: Usage = { bytes: 0, favoured: undefined };
  /** In the order of their first bytes, which is the order of their deadlines. */
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
   * Returns the unfinished message of a request. It serves all messages of the request, one after the other.
   * `connection` identifies the connection. `onTimeout` is called when a message takes too long.
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
   * Called by the message. Returns undefined if the message is small or there is room for all its bytes. Otherwise
   * returns a promise that resolves when there is room, or when the message ends.
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

  /** Counts all bytes of the message, if there is room. */
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

  /** Returns whether no message of any connection can be admitted now. Later messages need no check then. */
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

/** The received part of an incomplete message. */
export class UnfinishedMessage {
  readonly #all: UnfinishedMessages;
  readonly #onTimeout: (error: MessageTimeoutError) => void;
  readonly connection: Usage;
  /** Bytes that have arrived. */
  heldBytes = 0;
  /** Bytes that are counted against the bounds. */
  countedBytes = 0;
  /** Time of the first byte, in milliseconds of `performance.now()`. */
  begunAt = 0;
  /** Resumes the reader that waits for room. */
  resume: () => void = () => undefined;
  #begun = false;

  constructor(all: UnfinishedMessages, connection: Usage, onTimeout: (error: MessageTimeoutError) => void) {
    this.#all = all;
    this.connection = connection;
    this.#onTimeout = onTimeout;
  }

  /**
   * Records how many bytes have arrived. Returns a promise if there is no room: read nothing more until it resolves.
   */
  hold(bytes: number): Promise<void> | undefined {
    if (!this.#begun) {
      this.#begun = true;
      this.begunAt = performance.now();
      this.#all.begin(this);
    }
    this.heldBytes = bytes;
    return this.#all.admit(this);
  }

  /**
   * Ends the message, because it is complete or no longer needed. Idempotent. The next `hold` begins another message.
   */
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
