"use strict";
(function () {
  const rows = Array.from(document.querySelectorAll("#cases tbody tr"));
  const word = document.getElementById("filter-text");
  const truth = document.getElementById("filter-truth");
  const wrong = document.getElementById("filter-wrong");
  const held = document.getElementById("filter-held");
  const count = document.getElementById("filter-count");
  if (!word) { return; }
  const haystacks = rows.map(function (row) {
    return row.querySelector(".id").textContent.toLowerCase() + "\n" +
      row.querySelector(".text").textContent.toLowerCase();
  });
  function matches(row, place) {
    const wrongs = row.dataset.wrong ? row.dataset.wrong.split(" ") : [];
    return haystacks[place].includes(word.value.trim().toLowerCase()) &&
      (!truth.value || row.dataset.truth === truth.value) &&
      (!held.value || (held.value === "test") === (row.dataset.held === "test")) &&
      (!wrong.value || wrongs.includes(wrong.value));
  }
  function filter() {
    let shown = 0;
    rows.forEach(function (row, place) {
      row.hidden = !matches(row, place);
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = shown + " of " + rows.length + " records";
  }
  [word, truth, wrong, held].forEach(function (control) {
    control.addEventListener("input", filter);
  });
  filter();
})();
