/** Shortest time between two announcements. A screen reader interrupts a person who reads. */
export const ANNOUNCE_MS = 10_000;

/**
 * Announces a text to screen readers when it changes, at most every 10 seconds. The page shows the first one already.
 */
export class Announcements {
  readonly #say: (text: string) => void;
  #said: string | undefined;
  #newest = '';
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isResting = false;

  constructor(say: (text: string) => void) {
    this.#say = say;
  }

  change(text: string): void {
    this.#newest = text;
    this.#said ??= text;
    if (!this.#isResting) this.#next();
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  #next(): void {
    this.#isResting = this.#newest !== this.#said;
    if (!this.#isResting) return;
    this.#said = this.#newest;
    this.#say(this.#newest);
    this.#timer = setTimeout(() => this.#next(), ANNOUNCE_MS);
  }
}
