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
 * Measures how long the serving thread has parsed what a connection received. The driver parses rows in a listener of
 * the socket, so the time between a listener before it and one after it is measured.
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
