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

/** The part of all bytes that one principal may take: the others never wait for the messages of one alone. */
const PRINCIPAL_PART = 7 / 8;

/**
 * Bytes of the unfinished messages of one connection, of one principal, or of all. At the bound, only the favoured
 * message may grow.
 */
interface Usage {
  /** The bound, without the room for one whole message. */
  readonly share: number;
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
  readonly #connections = new WeakMap<object, Usage>();
  /** Only of those that have large unfinished messages. */
  readonly #principals = new Map<string, Usage>();
  readonly #total: Usage;
  /** In the order of their first bytes, which is the order of their deadlines. */
  readonly #open = new Set<UnfinishedMessage>();
  /** In the order in which they asked for room. */
  readonly #waiting = new Set<UnfinishedMessage>();
  #timer: NodeJS.Timeout | undefined;

  constructor(limits: UnfinishedLimits, largestMessageBytes: number) {
    this.#limits = limits;
    this.#connectionShare = limits.unfinishedBytesPerConnection - largestMessageBytes;
    this.#total = usageOf(limits.unfinishedBytes - largestMessageBytes);
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
      found = usageOf(this.#connectionShare);
      this.#connections.set(connection, found);
    }
    return new UnfinishedMessage(this, [found, this.#total], onTimeout);
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
    const isSmall = this.#isSmall(message);
    if (!isSmall && message.principal !== undefined) this.#countForPrincipal(message, message.principal);
    if (this.#fit(message) || isSmall) return undefined;
    this.#waiting.add(message);
    return new Promise((resolve) => {
      message.resume = resolve;
    });
  }

  /** Called by the message. */
  end(message: UnfinishedMessage): void {
    const { usages, countedBytes, principal } = message;
    this.#open.delete(message);
    for (const usage of usages) {
      usage.bytes -= countedBytes;
      if (usage.favoured === message) usage.favoured = undefined;
    }
    if (usages.length === 3) {
      message.usages = [usages[0]!, this.#total];
      if (usages[1]!.bytes === 0) this.#principals.delete(principal!);
    }
    if (this.#waiting.delete(message)) message.resume();
    for (const waiting of this.#waiting) {
      if (this.#fit(waiting)) {
        this.#waiting.delete(waiting);
        waiting.resume();
      } else if (this.#isFull(waiting)) return;
    }
  }

  /** Small messages do not wait, so they need not look for their principal. */
  #countForPrincipal(message: UnfinishedMessage, principal: string): void {
    const { usages, countedBytes } = message;
    if (usages.length === 3) return;
    const usage = this.#principals.get(principal) ?? usageOf(this.#total.share * PRINCIPAL_PART);
    this.#principals.set(principal, usage);
    usage.bytes += countedBytes;
    message.usages = [usages[0]!, usage, this.#total];
  }

  /** Counts all bytes of the message, if there is room. */
  #fit(message: UnfinishedMessage): boolean {
    const { usages } = message;
    const more = message.heldBytes - message.countedBytes;
    if (usages.some((usage) => !hasRoom(usage, more)) && !this.#isFavoured(message, more)) return false;
    for (const usage of usages) usage.bytes += more;
    message.countedBytes += more;
    return true;
  }

  /** Whether a message may grow in spite of the bounds. To be favoured in one, it must be in the narrower ones, too. */
  #isFavoured(message: UnfinishedMessage, more: number): boolean {
    if (this.#isSmall(message)) return false;
    const { usages } = message;
    let isFavoured = true;
    for (const [i, usage] of usages.entries()) {
      if (isFavoured && usages.slice(i).some((each) => !hasRoom(each, more))) usage.favoured ??= message;
      isFavoured = usage.favoured === message;
      if (!isFavoured && !hasRoom(usage, more)) return false;
    }
    return true;
  }

  #isSmall({ heldBytes }: UnfinishedMessage): boolean {
    return heldBytes <= this.#limits.smallMessageBytes;
  }

  /** Returns whether no message of any connection can be admitted now. Later messages need no check then. */
  #isFull({ heldBytes, countedBytes }: UnfinishedMessage): boolean {
    return this.#total.favoured !== undefined && !hasRoom(this.#total, heldBytes - countedBytes);
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
  /** From the narrowest bound to that of all. */
  usages: readonly Usage[];
  /** Who sends it, if a valid credential says so. */
  principal: string | undefined;
  /** Bytes that have arrived. */
  heldBytes = 0;
  /** Bytes that are counted against the bounds. */
  countedBytes = 0;
  /** Time of the first byte, in milliseconds of `performance.now()`. */
  begunAt = 0;
  /** Resumes the reader that waits for room. */
  resume: () => void = () => undefined;
  #begun = false;

  constructor(all: UnfinishedMessages, usages: readonly Usage[], onTimeout: (error: MessageTimeoutError) => void) {
    this.#all = all;
    this.usages = usages;
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

function usageOf(share: number): Usage {
  return { share, bytes: 0, favoured: undefined };
}

function hasRoom({ share, bytes, favoured }: Usage, more: number): boolean {
  return more <= share - bytes + (favoured?.countedBytes ?? 0);
}
