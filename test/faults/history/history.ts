/**
 * What writers, readers and followers of a run sent and received, in the order in which it happened in this process.
 */

/**
 * A position in the history: of two events the later one has the greater. It is a counter, so that no clock can reorder
 * events.
 */
export type Tick = number;

/**
 * `acked`: the server said that it is durable. `refused`: the server refused it, so it is not stored. `unknown`: the
 * answer never arrived; both are allowed. `open`: still waiting.
 */
export type Outcome = 'open' | 'acked' | 'refused' | 'unknown';

/** A writer's stream was granted. */
export interface Grant {
  readonly trajectory: string;
  readonly writer: string;
  readonly epoch: bigint;
  /** The end of the trajectory in the grant. */
  readonly next: bigint;
  /** When the grant had arrived. */
  readonly tick: Tick;
}

export interface Append {
  readonly trajectory: string;
  readonly writer: string;
  readonly number: bigint;
  /** A value that no other step of the run has. */
  readonly content: string;
  /** Before it could have been sent. */
  readonly begin: Tick;
  outcome: Outcome;
  end?: Tick;
  /** The reason with which the server refused it. */
  reason?: string | undefined;
}

export interface SeenStep {
  readonly number: bigint;
  readonly content: string;
}

/** One complete answer of ReadSteps, from `from` to the end at that time. */
export interface Read {
  readonly reader: string;
  readonly trajectory: string;
  readonly from: bigint;
  readonly begin: Tick;
  readonly end: Tick;
  readonly got: readonly SeenStep[];
}

/** All messages that one follower received over all its calls, each of which starts at the last number + 1. */
export interface Follow {
  readonly follower: string;
  readonly trajectory: string;
  readonly from: bigint;
  readonly got: (SeenStep & { readonly tick: Tick })[];
  /** `next_step_number` of every message, and the number of steps received with and before it. */
  readonly marks: { readonly next: bigint; readonly delivered: number }[];
  /** It stayed until the writers had ended, and had time to receive the rest. */
  stayed: boolean;
}

export interface Branching {
  readonly branch: string;
  readonly parent: string;
  readonly point: bigint;
  outcome: Outcome;
}

export interface Sealing {
  readonly trajectory: string;
  outcome: Outcome;
}

/** The input of the checker. */
export interface Recorded {
  readonly grants: readonly Grant[];
  readonly appends: readonly Append[];
  readonly reads: readonly Read[];
  readonly follows: readonly Follow[];
  readonly branchings: readonly Branching[];
  readonly sealings: readonly Sealing[];
}

export class History implements Recorded {
  readonly grants: Grant[] = [];
  readonly appends: Append[] = [];
  readonly reads: Read[] = [];
  readonly follows: Follow[] = [];
  readonly branchings: Branching[] = [];
  readonly sealings: Sealing[] = [];
  /** Errors that no fault of the run explains: a proof expects none. */
  readonly surprises: string[] = [];
  /** Unacked steps, now. */
  inFlight = 0;
  acked = 0;
  /**
   * Steps that a client helper found stored after a reconnect, although it had no ack for them: it sends them again,
   * and they must not be duplicated.
   */
  replayedStored = 0;
  /** How granted streams without a helper ended: the reasons of the server, or `cut` without one. */
  readonly streamEnds = new Map<string, number>();
  #tick = 0;
  readonly #grantCounts = new Map<string, number>();
  readonly #ackedEnds = new Map<string, bigint>();

  tick(): Tick {
    this.#tick += 1;
    return this.#tick;
  }

  /** The highest number known to be durable in a trajectory of its own, + 1; 0 if none is. */
  ackedEnd(trajectory: string): bigint {
    return this.#ackedEnds.get(trajectory) ?? 0n;
  }

  granted(grant: Omit<Grant, 'tick'>): void {
    this.grants.push({ ...grant, tick: this.tick() });
    this.#grantCounts.set(grant.trajectory, this.grantCount(grant.trajectory) + 1);
  }

  grantCount(trajectory: string): number {
    return this.#grantCounts.get(trajectory) ?? 0;
  }

  streamEnded(reason: string | undefined): void {
    const name = reason ?? 'cut';
    this.streamEnds.set(name, (this.streamEnds.get(name) ?? 0) + 1);
  }

  /** Must be called before the step can have left this process. */
  sending(trajectory: string, writer: string, number: bigint, content: string): Append {
    const append: Append = { trajectory, writer, number, content, begin: this.tick(), outcome: 'open' };
    this.appends.push(append);
    this.inFlight += 1;
    return append;
  }

  settle(append: Append, outcome: Exclude<Outcome, 'open'>, reason?: string): void {
    if (append.outcome !== 'open') return;
    append.outcome = outcome;
    append.end = this.tick();
    append.reason = reason;
    this.inFlight -= 1;
    if (outcome !== 'acked') return;
    this.acked += 1;
    if (append.number >= this.ackedEnd(append.trajectory)) this.#ackedEnds.set(append.trajectory, append.number + 1n);
  }
}
