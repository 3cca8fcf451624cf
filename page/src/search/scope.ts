import type { Address } from '../address.ts';

/** Where a search looks, as the address names it: `tree:ID`, `run:ID`, `trajectory:ID`, or everywhere. */
export interface Scope {
  readonly kind: 'tree' | 'run' | 'trajectory' | 'everywhere';
  /** Empty for everywhere. */
  readonly id: string;
}

export function parseScope(text: string | null): Scope {
  const [, kind, id = ''] = /^(tree|run|trajectory):(.+)$/.exec(text ?? '') ?? [];
  return kind === undefined ? { kind: 'everywhere', id: '' } : { kind: kind as Scope['kind'], id };
}

/** Returns what a search in the view at an address begins with: the resource that is open. */
export function scopeOf({ view, id }: Pick<Address, 'view' | 'id'>): string | undefined {
  return view === 'tree' || view === 'run' ? `${view}:${id}` : undefined;
}
