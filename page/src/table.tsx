import type { ComponentChildren } from 'preact';

/** Name of a column. `n`: a column of numbers, aligned to the right. */
export type Column = string | { readonly n: string };

interface TableProps {
  readonly columns: readonly Column[];
  /** Rows. */
  readonly children: ComponentChildren;
}

/** A list with named columns. It scrolls sideways where it is wider than the screen. */
export function Table({ columns, children }: TableProps) {
  return (
    <div class="scroll">
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
    </div>
  );
}
