import type { Change } from '../../../domain/change.ts';
import type { CallScope } from '../../contract/store.ts';
import type { ChangeListeners } from './changes.ts';
import { Compressor } from './compressor.ts';
import type { KeptQueries } from './kept_queries.ts';
import type { ReadSlots } from './reading/slots.ts';

/** State that an engine shares with its scopes (`Engine.within`). */
export interface EngineParts {
  readonly description: string;
  /** See `Store.lost`. */
  readonly lost?: AbortSignal;
  readonly listeners: ChangeListeners;
  readonly kept: KeptQueries;
  readonly slots: ReadSlots;
  /** Set by the first scope. */
  compressor?: Compressor;
  closed: Promise<void> | undefined;
}

/** Members that both engines implement alike. */
export abstract class SharedEngine<Parts extends EngineParts> {
  readonly description: string;
  readonly kept: KeptQueries;
  readonly slots: ReadSlots;
  readonly compressor: Compressor;
  protected readonly parts: Parts;
  protected readonly call: CallScope | undefined;

  constructor(parts: Parts, call: CallScope | undefined) {
    this.description = parts.description;
    this.kept = parts.kept;
    this.slots = parts.slots;
    parts.compressor ??= new Compressor();
    this.compressor = parts.compressor;
    this.parts = parts;
    this.call = call;
  }

  get lost(): AbortSignal | undefined {
    return this.parts.lost;
  }

  announce(changes: readonly Change[]): void {
    for (const change of changes) this.parts.listeners.tell(change);
  }

  onChange(listener: (change: Change | undefined) => void): () => void {
    return this.parts.listeners.add(listener);
  }

  /** Idempotent. */
  close(): Promise<void> {
    this.parts.closed ??= this.closeParts();
    return this.parts.closed;
  }

  protected abstract closeParts(): Promise<void>;
}
