import type { ComponentChildren } from 'preact';

/** Name of a column. `n`: a column of numbers, aligned to the right. */
export type Column = string | { readonly n: string };

interface ScrollerProps {
  /** What scrolls. Required if it has no links or buttons: it takes the focus itself then, so that keys scroll it. */
  readonly label?: string | undefined;
  readonly children: ComponentChildren;
}

/** Scrolls its content sideways where it is wider than the screen. */
export function Scroller({ label, children }: ScrollerProps) {
  if (label === undefined) return <div class="scroll">{children}</div>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it scrolls, also by keyboard
    <section class="scroll" aria-label={label} tabIndex={0}>
      {children}
    </section>
  );
}

interface TableProps extends ScrollerProps {
  readonly columns: readonly Column[];
  /** Rows. */
  readonly children: ComponentChildren;
}

/** A list with named columns. It scrolls sideways where it is wider than the screen. */
export function Table({ columns, label, children }: TableProps) {
  return (
    <Scroller label={label}>
      <table class="list">
        <thead>
          <tr>
            {columns.map((column) =>
              typeof column === 'string' ? (
                <th key={column} scope="col">
                  {column}
                </th>
              ) : (
                <th key={column.n} scope="col" class="n">
                  {column.n}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </Scroller>
  );
}
