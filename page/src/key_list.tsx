import type { RefObject } from 'preact';
import { useMemo, useRef } from 'preact/hooks';

/** Keys and what they do, as the list shows them. */
const KEYS: readonly (readonly [keys: readonly string[], does: string])[] = [
  [['/'], 'search in what is open'],
  [['?'], 'show this list'],
  [['j', 'k'], 'next and previous row, in every list and in the tree'],
  [['Enter'], 'open the row'],
  [['↑', '↓'], 'previous and next row, while a row or the tree has the focus'],
  [['←', '→'], 'tree: collapse and expand a row, or go to its parent and its first branch'],
  [['Home', 'End', 'Page ↑', 'Page ↓'], 'tree: first row, last row, ten rows up and down'],
  [['n', 'p'], 'tree: next and previous step'],
  [['Esc'], 'close a dialog, or leave a field'],
];

/** Returns the dialog of keys, and a function that opens it. */
export function useKeyList() {
  const dialog = useRef<HTMLDialogElement>(null);
  return useMemo(() => {
    const show = () => {
      if (dialog.current?.open !== false) return;
      dialog.current.showModal();
      // The dialog gives the focus to its only button, at the end of the list.
      dialog.current.scrollTop = 0;
    };
    return { dialog, show };
  }, []);
}

export function KeyList({ dialog }: { readonly dialog: RefObject<HTMLDialogElement | null> }) {
  return (
    <dialog ref={dialog} aria-labelledby="keys">
      <h2 id="keys">Keys</h2>
      <dl class="keys">
        {KEYS.map(([keys, does]) => (
          <div key={does}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}
