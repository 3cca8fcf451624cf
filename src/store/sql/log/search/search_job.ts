import type { FoundText, SearchQuery } from '../../../../domain/step_search.ts';
import type { StoredBody } from '../read/stored_body.ts';

/** Segments to search, in order. Everything in it is copied to the thread. */
export interface SearchJob extends SearchQuery {
  readonly segments: readonly SearchedSegment[];
}

export interface SearchedSegment extends StoredBody {
  readonly owner: bigint;
  readonly first: bigint;
  /** The steps to search. */
  readonly from: bigint;
  readonly to: bigint;
}

/** Answer of the thread. */
export type SearchReply = { readonly found: readonly FoundText[] } | { readonly error: Error };
