// The layout of a page in its window, in numbers.
((window, document) => {
  const box = (element) => element.getBoundingClientRect();
  const isShown = (element) => box(element).width > 0 && box(element).height > 0;
  const folded = (element) => element.closest("details:not([open])") !== null;
  const pictures = [...document.querySelectorAll("svg[role=img], canvas[role=img]")]
    .filter((e) => !folded(e));
  const isPainted = (e) => e.getContext("2d").getImageData(0, 0, e.width, e.height)
    .data.some((part) => part > 0);
  const isDrawn = (e) => e.matches("canvas") ? isPainted(e) : e.querySelector("path, rect, line");
  const words = [...document.querySelectorAll("p, td, th, li, h1, h2, h3, dt, dd, svg text")]
    .filter((element) => isShown(element) && !folded(element) && element.textContent.trim());
  const style = window.getComputedStyle(document.body);
  return {
    title: document.title,
    sections: document.querySelectorAll("h2").length,
    width: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    ground: style.backgroundColor,
    ink: style.color,
    pictures: pictures.length,
    empty: pictures.filter((e) => !isShown(e) || !isDrawn(e)).length,
    small: words.filter((e) => parseFloat(window.getComputedStyle(e).fontSize) < 11)
      .map((element) => element.textContent.trim()),
    // A table that scrolls by itself may be wider than the window.
    outside: words
      .filter((e) => !e.closest(".scroll"))
      .filter((e) => box(e).left < -0.5 || box(e).right > window.innerWidth + 0.5)
      .map((element) => element.textContent.trim()),
  };
})
