/** `pg` has these fields, its types do not. */
interface Connected {
  readonly connection: {
    readonly stream: {
      on(event: 'data', listener: () => void): void;
      prependListener(event: 'data', listener: () => void): void;
    };
  };
}

/**
 * Measures for how long a connection has kept the serving thread busy with what it received. The driver parses rows as they arrive, in listeners of the
 * socket: this measures from the first listener to the last.
 */
export class ParseTime {
  /** Since the connection was made. */
  milliseconds = 0;

  /** The connection must be ready: a switch to TLS replaces the stream. */
  constructor(client: object) {
    const { stream } = (client as Connected).connection;
    let begun = 0;
    stream.prependListener('data', () => {
      begun = performance.now();
    });
    stream.on('data', () => {
      this.milliseconds += performance.now() - begun;
    });
  }
}
