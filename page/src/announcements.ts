/** Changes are announced at most as often as this: a screen reader interrupts what a person reads. */
export const ANNOUNCE_MS = 10_000;

/** Says the newest text when it has changed, at most every 10 seconds. The first text is not said: it is on the page. */
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
