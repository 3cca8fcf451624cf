import type { CheckedPart } from '../../../../../domain/archive.ts';

/** What the thread that reads an archive is sent. Without a chunk, the archive has ended. */
export type Request =
  | { readonly kind: 'part wanted' }
  | { readonly kind: 'chunk'; readonly chunk: Uint8Array | undefined };

/** What it sends: parts that were asked for, and its own requests for chunks. */
export type Reply =
  | { readonly kind: 'chunk wanted' }
  | { readonly kind: 'part'; readonly part: CheckedPart }
  | { readonly kind: 'end' }
  | { readonly kind: 'refused'; readonly message: string; readonly place: string };
