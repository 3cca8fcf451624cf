import type { AnabranchError } from '../domain/errors.ts';

/** Credentials that are remembered. */
const MOST = 1000;
/** How long a credential is refused without another look at it, in milliseconds. */
const REFUSED_MS = 2000;

/** Credentials that were refused a moment ago, so that repeating one costs next to nothing. */
export class RefusedCredentials {
  /** The oldest first. */
  readonly #all = new Map<string, { readonly until: number; readonly error: AnabranchError }>();

  add(name: string, error: AnabranchError): void {
    this.#all.delete(name);
    if (this.#all.size >= MOST) for (const oldest of this.#all.keys()) if (this.#all.delete(oldest)) break;
    this.#all.set(name, { until: performance.now() + REFUSED_MS, error });
  }

  throwIfRefused(name: string): void {
    const found = this.#all.get(name);
    if (found !== undefined && found.until > performance.now()) throw found.error;
  }
}
