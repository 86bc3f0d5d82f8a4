// A number that is half typed, as 1e of 1e-4, is no value: a field that took it for an empty one would be drawn anew and
// lose it to whoever types faster than the page draws. It counts once it is whole, or when the field is left.
let isLeft = false;

function isHalf(field) {
  return field instanceof HTMLInputElement && field.type === 'number' && field.validity.badInput;
}

addEventListener('input', (event) => {
  if (isHalf(event.target) && !isLeft) event.stopImmediatePropagation();
}, true);

addEventListener('focusout', (event) => {
  if (!isHalf(event.target)) return;
  isLeft = true;
  event.target.dispatchEvent(new Event('input', { bubbles: true }));
  isLeft = false;
}, true);
